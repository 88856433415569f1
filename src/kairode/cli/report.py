"""`kairode report`: pages and documents from records; nothing is run."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from kairode.errors import KairodeError


def report_command(
    folders: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN|RESULTS")] = (Path("results"),),
    document: Path = Path("docs/results.md"),
    page: Path | None = None,
    record: Path | None = None,
    gait: Path | None = None,
) -> None:
    """Make pages from records alone: of runs, or of all results beside the paper's.

    For a folder that `kairode run` left: its report.html; for several that differ by their seed alone also a table of
    them. For a folder of published records (results/ in a clone): the
    tables and figures of docs/results.md are written anew, its sentences stay; --page makes a page of them.

    Example: kairode report runs/hiv-latent-ode-seed0

    Example: kairode report runs/hiv-latent-ode-seed0 runs/hiv-latent-ode-seed1

    Example: kairode report results/

    Example: kairode report results/ --page results.html

    Args:
        folders: of runs, or of published records.
        document: whose tables and figures are written anew from published records.
        page: write a page of the published records there, and leave the document alone.
        record: write the figures of several runs, taken together, to this file.
        gait: draw the gaits of these runs of robots as one figure, such as docs/gait.svg.
    """
    from kairode.report.results_page import write_document, write_results_page
    from kairode.report.run_page import write_run_page

    if gait is not None:
        from kairode.report.video import save_gaits

        save_gaits(folders, gait)
        print(f"Gaits: {gait}")
        return
    runs = [folder for folder in folders if (folder / "record.json").exists()]
    if record is not None and len(runs) < 2:
        raise KairodeError("--record is of several runs, taken together: give two or more of them.")
    for folder in folders:
        if (folder / "record.json").exists() and page is not None:
            raise KairodeError(f"--page is for published records; the page of {folder} is its report.html.")
        if (folder / "record.json").exists():
            print(f"The page of this run: {write_run_page(folder)}")
        elif not folder.is_dir():
            raise KairodeError(f"there is no folder {folder}: give one of `kairode run`, or results/ in a clone.")
        elif any(folder.rglob("config.json")):
            raise KairodeError(f"{folder} holds no finished run: the command that began it goes on.")
        elif page is not None:
            print(f"The page of all results: {write_results_page(page, folder)}")
        else:
            written = write_document(document, folder)
            print(f"Written anew from the records in {folder}: {document} ({', '.join(written)}).")
    if len(runs) > 1:
        _taken_together(runs, record)


def _taken_together(runs: list[Path], path: Path | None) -> None:
    """A table of runs that differ by their seeds; its record, where one is wanted."""
    from kairode.files import save_json
    from kairode.report.compare import compare_runs, comparison_sentence, runs_table
    from kairode.report.table import print_table

    try:
        made = compare_runs(runs, path)
    except KairodeError as error:
        if path is not None:
            raise
        print(f"Not taken together: {error}")
        return
    print_table(runs_table(made))
    print(comparison_sentence(made))
    if path is not None:
        save_json(path, made)
        print(f"Record: {path}")
