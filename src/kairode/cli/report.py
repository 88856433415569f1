"""`kairode report`: pages and documents from records; nothing is run."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from kairode.errors import KairodeError
from kairode.text import say


def report_command(
    folders: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN|RESULTS")] = (Path("results"),),
    document: Path = Path("docs/results.md"),
    page: Path | None = None,
    record: Path | None = None,
    gait: Path | None = None,
) -> None:
    """Write pages from records: of runs, or of all results compared with the paper's.

    For a folder of `kairode run`: its report.html; for several that differ only by their seed also a table. For a
    folder of published records (results/ in a clone): update the tables and figures of docs/results.md, or write a page
    (--page).

    Example: kairode report runs/hiv-latent-ode-seed0

    Example: kairode report runs/hiv-latent-ode-seed0 runs/hiv-latent-ode-seed1

    Example: kairode report results/

    Example: kairode report results/ --page results.html

    Args:
        folders: run folders, or a folder of published records.
        document: document whose tables and figures are updated from published records.
        page: write a page of the published records to this file instead.
        record: write the joint record of several runs to this file.
        gait: draw the gaits of these runs of robots as one figure, such as docs/gait.svg.
    """
    from kairode.report.results_page import write_document, write_results_page
    from kairode.report.run_page import write_run_page

    if gait is not None:
        from kairode.report.video import save_gaits

        save_gaits(folders, gait)
        say(f"Gaits: {gait}")
        return
    runs = [folder for folder in folders if (folder / "record.json").exists()]
    if record is not None and len(runs) < 2:
        raise KairodeError("--record needs two or more runs.")
    for folder in folders:
        if (folder / "record.json").exists() and page is not None:
            raise KairodeError(f"--page is for published records; the page of a run is {folder}/report.html.")
        if (folder / "record.json").exists():
            say(f"Report: {write_run_page(folder)}")
        elif not folder.is_dir():
            raise KairodeError(f"{folder} does not exist: give a folder of `kairode run`, or results/ in a clone.")
        elif any(folder.rglob("manifest.json")) or any(folder.rglob("config.json")):
            raise KairodeError(f"{folder} holds no finished run: run its command again to resume.")
        elif page is not None:
            say(f"Report of all results: {write_results_page(page, folder)}")
        else:
            written = write_document(document, folder)
            say(f"Updated {document} from the records in {folder}: {', '.join(written)}.")
    if len(runs) > 1:
        _compare(runs, record)


def _compare(runs: list[Path], path: Path | None) -> None:
    from kairode.files import save_json
    from kairode.report.compare import compare_runs, comparison_sentence, runs_table
    from kairode.report.table import print_table

    try:
        made = compare_runs(runs, path)
    except KairodeError as error:
        if path is not None:
            raise
        say(f"Not compared: {error}")
        return
    print_table(runs_table(made))
    print(comparison_sentence(made))
    if path is not None:
        save_json(path, made)
        say(f"Record: {path}")
