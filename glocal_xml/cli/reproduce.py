"""
Trains the models of a table of a paper, as the paper did, and prints what it measures beside what the paper says.
First it reads the data: format, checksums, and sizes, with a warning where they are not those of the paper. Run an
interrupted command again to resume it; finished runs are not repeated.

All other options are those of `glocal-xml train --help` and override the recipe in all runs. docs/reproduce.md says
where each data set can be found.

Recipes: {recipes}.

examples:
  glocal-xml reproduce glocal_xml/eurlex4k --data_dir data/eurlex4k
  glocal-xml reproduce glocal_xml/eurlex4k --dry-run
  glocal-xml reproduce me_xml/wiki10_31k --members two_experts --per_device_eval_batch_size 16
"""

from typing import Any

from glocal_xml.reproduce.table_recipe import read_table, recipe_names

from .command_parser import add_overwrite, command_parser


def main(argv: list[str]) -> list[Any]:
    """Reproduces the table that the arguments name, or shows how; returns the compared numbers."""
    parser = command_parser(
        "reproduce", (__doc__ or "").format(recipes=", ".join(recipe_names())), usage="%(prog)s RECIPE [OPTIONS]"
    )
    parser.add_argument("recipe", help="one of those above, or the path of a .yaml file like theirs")
    parser.add_argument(
        "--data_dir", metavar="FOLDER", help="folder with training and test texts (default: data/<name of the set>)"
    )
    parser.add_argument("--train_file", metavar="FILE", help="instead of a folder: training texts")
    parser.add_argument("--test_file", metavar="FILE", help="and test texts")
    parser.add_argument(
        "--output_dir", metavar="FOLDER", help="for runs and comparison (default: outputs/reproduce/<recipe>)"
    )
    parser.add_argument("--members", nargs="+", metavar="NAME", help="only these runs; the ensemble needs all")
    parser.add_argument(
        "--dry-run", action="store_true", help="only show the commands, and their memory and time on this machine"
    )
    add_overwrite(parser, "retrain runs whose settings have changed")
    if not argv:
        parser.print_help()
        return []
    own, flags = parser.parse_known_args(argv)
    from glocal_xml.reproduce.data_check import data_files
    from glocal_xml.reproduce.reproduce import COMPARISON_FILE, comparison_table, dry_run, reproduce
    from glocal_xml.runs.run import start_logging

    start_logging()
    recipe = read_table(own.recipe)
    output_dir = own.output_dir or f"outputs/reproduce/{recipe.name}"
    try:
        files = data_files(recipe, own.data_dir, own.train_file, own.test_file)
    except ValueError as error:
        if not own.dry_run:
            raise
        print(f"{error}\n")
        folder = own.data_dir or recipe.data.folder
        files = {f"{part}_file": f"{folder}/{part}.jsonl" for part in ("train", "test")}
    if own.dry_run:
        print("\n".join(dry_run(recipe, files, output_dir, flags, own.members)))
        return []
    rows = reproduce(recipe, files, output_dir, flags=flags, members=own.members, overwrite=own.overwrite_output)
    print(f"\n{recipe.name} on {recipe.data.name}, percent\n{comparison_table(rows)}")
    print(f"measured: by these runs; published: in the paper ({recipe.paper}).\n{output_dir}/{COMPARISON_FILE}")
    return rows
