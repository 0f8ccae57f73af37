"""`python -m glocal_xml` is `glocal-xml`."""

import sys

from glocal_xml.cli import main

if __name__ == "__main__":
    sys.exit(main())
