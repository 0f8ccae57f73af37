"""The commands of `glocal-xml` that work on trained models; each file has a `main` that takes its arguments."""
