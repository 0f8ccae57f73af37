"""
Figures of a table of results: `python benchmarks/quality/figures.py RESULTS.csv FOLDER`.

quality_time.png: accuracy against training time; quality_bands.png: accuracy by label frequency.
"""

import sys
from pathlib import Path

from matplotlib.figure import Figure
from results_csv import DATA_NAMES, read_rows, values_by_run

# Of Okabe and Ito, told apart with any colour vision; ours is drawn last, in blue.
_OURS, _COLOURS = "#0072B2", ("#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#000000", "#999999")
_MARKERS = "os^Dv<>pXh"
_BANDS = {"few": "1-20", "medium": "21-100", "many": "over 100"}
_TIMES = {2: "2 s", 10: "10 s", 60: "1 min", 300: "5 min", 1800: "30 min", 7200: "2 h"}
_METRICS = {"precision@1": "P@1", "precision@5": "P@5", "psp@5": "PSP@5"}


def main() -> None:
    table, folder = map(Path, sys.argv[1:])
    rows = [row for row in read_rows(table) if row["benchmark"] == "quality" and row["contender"] != "label-frequency"]
    sets = values_by_run([row for row in rows if row["metric"] != "failed"])
    looks = _looks(rows)
    for name, draw, height in (("time", _draw_time, 3 * len(_METRICS)), ("bands", _draw_bands, 4)):
        canvas = Figure(figsize=(5 * len(sets), height), layout="constrained")
        panels = canvas.subplots(len(_METRICS) if name == "time" else 1, len(sets), squeeze=False)
        for column, (key, runs) in zip(panels.T, sets.items(), strict=True):
            draw(column, _by_family(runs), looks)
            column[0].set_title(f"{DATA_NAMES.get(key[0], key[0])}, {int(key[2]):,} training texts", fontsize=10)
        handles = {
            line.get_label(): line for panel in panels.flat for line in panel.lines if line.get_label()[0] != "_"
        }
        canvas.legend(handles.values(), handles, loc="outside right upper", frameon=False, fontsize=9)
        for panel in panels.flat:
            panel.grid(color="#DDDDDD", linewidth=0.6)
            panel.set_axisbelow(True)
        canvas.savefig(folder / f"quality_{name}.png", dpi=130)


def _draw_time(column, families, looks) -> None:
    for panel, (metric, name) in zip(column, _METRICS.items(), strict=True):
        for family, runs in families.items():
            # Seconds of processors, since other work may have run beside.
            points = sorted((values["train_cpu_seconds"] / values["cores"], 100 * values[metric]) for values in runs)
            panel.plot(*zip(*points, strict=True), label=family, **looks[family])
        panel.set(xscale="log", ylabel=f"{name}, percent")
        # Differences that are noise should look small.
        low, high = panel.get_ylim()
        panel.set_ylim(min(low, (low + high) / 2 - 2), max(high, (low + high) / 2 + 2))
        shortest, longest = panel.get_xlim()
        panel.set_xlim(min(shortest, 1.5), max(longest, 90))
        panel.set_xticks(list(_TIMES), _TIMES.values())
        panel.minorticks_off()
    column[-1].set_xlabel("training time, of each core")


def _draw_bands(column, families, looks) -> None:
    for family, runs in families.items():
        best = max(runs, key=lambda values: values["precision@5"])
        shares = [100 * best.get(f"macro_f1@5_{band}", float("nan")) for band in _BANDS]
        column[0].plot(list(_BANDS.values()), shares, label=family, **looks[family])
    column[0].set(xlabel="training texts of a label", ylabel="mean F1@5 of labels, percent", ylim=(0, None))


def _by_family(runs) -> dict[str, list[dict[str, float]]]:
    """Means over the seeds of a contender; those with several time budgets belong together."""
    seeds: dict[str, list[dict[str, str]]] = {}
    for (contender, _), values in runs.items():
        seeds.setdefault(contender, []).append(values)
    families: dict[str, list[dict[str, float]]] = {}
    for contender, found in seeds.items():
        names = set.intersection(*map(set, found)) - {"note"}
        means = {name: sum(float(values[name]) for values in found) / len(found) for name in names}
        families.setdefault(contender.split(",")[0], []).append(means)
    return families


def _looks(rows) -> dict[str, dict]:
    """Colour and marker of each family, the same in all panels."""
    families = list(dict.fromkeys(row["contender"].split(",")[0] for row in rows))
    others = [family for family in families if not family.startswith("ours")]
    looks = {}
    for i, family in enumerate(families):
        is_ours = family not in others
        colour = _OURS if is_ours else _COLOURS[others.index(family) % len(_COLOURS)]
        looks[family] = {"color": colour, "marker": _MARKERS[i % len(_MARKERS)], "zorder": 3 if is_ours else 2}
    return looks


if __name__ == "__main__":
    main()
