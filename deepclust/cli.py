"""The command line: read the options, call one function, show what it returns.

Nothing heavy is imported before a command runs, so that `--help` answers at once.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from deepclust import __version__, endings, screen
from deepclust.errors import Stopped

app = typer.Typer(
    name="deepclust",
    help="Deep clustering of image folders: learn a representation, cluster, check, export.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

RunArgument = Annotated[
    Path | None,
    Argument(metavar="[RUN]", help="Folder written by pretrain; the newest if left out."),
]
Device = Annotated[str, Option(help="auto, cpu, cuda, cuda:1 or mps.")]
Threads = Annotated[
    int | None, Option(min=1, max=1024, help="Threads that compute; all cores if left out.")
]
Workers = Annotated[int, Option(min=0, max=256, help="Processes and threads that read pictures.")]
Json = Annotated[bool, Option("--json", help="Print the result as JSON.")]
Open = Annotated[bool, Option("--open", help="Open the page in a browser when it is done.")]
FollowLinks = Annotated[
    bool, Option("--follow-links", help="Read links that leave the folder too.")
]
MOST = 30  # clusters in a table
level = 1
debug = False


def _version(asked: bool) -> None:
    if asked:
        print(f"deepclust {__version__}")
        raise typer.Exit


@app.callback()
def options(
    quiet: Annotated[bool, Option("--quiet", "-q", help="Show warnings only.")] = False,
    trace: Annotated[bool, Option("--debug", help="Show tracebacks.")] = False,
    version: Annotated[
        bool, Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    global level, debug
    level, debug = (0 if quiet else 1), trace


@app.command()
def pretrain(
    images: Annotated[
        Path | None, Argument(metavar="IMAGES", help="Folder of pictures, nested or flat.")
    ] = None,
    method: Annotated[
        str | None, Option(help="cc, pcl, simclr or module:Class; what measured best.")
    ] = None,
    k: Annotated[int | None, Option(help="Clusters, for methods that train with them.")] = None,
    encoder: Annotated[
        str | None, Option(help="resnet8, resnet18-small, resnet34, lite0, any timm name.")
    ] = None,
    weights: Annotated[
        str | None, Option(help="none, packaged, hub (downloads), or a file.")
    ] = None,
    image_size: Annotated[int | None, Option(help="Side in pixels that the encoder sees.")] = None,
    epochs: Annotated[int | None, Option(help="Passes over all pictures.")] = None,
    batch_size: Annotated[int | None, Option(help="Pictures in a step.")] = None,
    seed: Annotated[int | None, Option(help="Of everything that is drawn at random; 0.")] = None,
    out: Annotated[Path | None, Option(help="The run to write; runs/<folder> if left out.")] = None,
    config: Annotated[
        Path | None, Option(help="Settings as TOML, such as a run's config.toml.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        Option("--set", metavar="KEY=VALUE", help="Any setting: views.flip=false, train.lr=1e-4."),
    ] = None,
    resume: Annotated[bool, Option("--resume", help="Go on with a run that was stopped.")] = False,
    init_from: Annotated[Path | None, Option(help="Run or file to take weights from.")] = None,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace a run that is there.")] = False,
    strict: Annotated[bool, Option("--strict", help="A skipped picture is an error.")] = False,
    follow_links: FollowLinks = False,
    device: Device = "auto",
    threads: Threads = None,
    workers: Workers = 2,
    json: Json = False,
) -> None:
    """Learn a representation on the pictures of a folder.

    Example: deepclust pretrain ./images
    """
    from deepclust.steps import pretrain as step

    sets = [*(set_ or []), *(["data.follow_links=true"] if follow_links else [])]
    done = step.pretrain(
        images, method=method, k=k, encoder=encoder, weights=weights, image_size=image_size,
        epochs=epochs, batch_size=batch_size, seed=seed, out=out, config=config,
        sets=sets, resume=resume, init_from=init_from, overwrite=overwrite, strict=strict,
        machine=step.Machine(device, threads, workers), progress=screen.Screen(level),
    )  # fmt: skip
    path = done.run.path
    if json:
        screen.as_json(
            {"run": path, "images": done.images, "skipped": done.skipped, "epochs": done.epochs,
             "warnings": done.warnings}
        )  # fmt: skip
        return
    screen.result(f"{done.images} images, {done.epochs} epochs: {path}")
    own = done.run.info["settings"]["k"]
    screen.result(f"next: deepclust cluster {path}" + ("" if own else " --k K"))


@app.command()
def cluster(
    run: Annotated[
        Path | None,
        Argument(metavar="[RUN | IMAGES]", help="A run, or a folder of pictures; the newest run."),
    ] = None,
    k: Annotated[
        str | None, Option(help="Clusters: 12, a range 5-60, or auto; the run's own if left out.")
    ] = None,
    algorithm: Annotated[
        str, Option(help="auto, head, kmeans, agglomerative, hdbscan, spectral, …")
    ] = "auto",
    seed: Annotated[int, Option(min=0, max=2**32 - 1, help="Of the clustering.")] = 0,
    name: Annotated[str | None, Option(help="Of the folder under clusters/.")] = None,
    edits: Annotated[
        Path | None, Option(metavar="FILE", help="Fix-ups: merge, rename, move, drop, split.")
    ] = None,
    outliers: Annotated[
        str | None,
        Option(metavar="5%|auto", help="Leave the least reliable pictures out, as cluster -1."),
    ] = None,
    levels: Annotated[
        bool, Option("--levels", help="Coarser and finer clusterings too: levels.csv.")
    ] = False,
    fresh: Annotated[
        bool, Option("--fresh", help="As if never clustered before: new numbers, no edits.")
    ] = False,
    encoder: Annotated[
        str | None, Option(help="A folder never seen: lite0, or any timm name with --weights.")
    ] = None,
    weights: Annotated[str | None, Option(help="Of that encoder: a file, or hub.")] = None,
    fast: Annotated[
        bool, Option("--fast", help="A folder never seen: no views, a fifth of the time.")
    ] = False,
    views: Annotated[
        int | None, Option(min=2, max=64, help="A folder never seen: views of each picture; 4.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        Option("--set", metavar="KEY=VALUE", help="A folder never seen: views.flip=false, …"),
    ] = None,
    follow_links: FollowLinks = False,
    device: Device = "auto",
    threads: Threads = None,
    workers: Workers = 2,
    open_: Open = False,
    json: Json = False,
) -> None:
    """Give every picture to a cluster: of a run, or of a folder never seen before.

    Example: deepclust cluster --k 50
    """
    from deepclust.steps import cluster as step
    from deepclust.steps.pretrain import Machine

    sets = [*(set_ or []), *(["views.cached=0"] if fast else [])]
    sets += [f"views.cached={views}"] if views is not None else []
    sets += ["data.follow_links=true"] if follow_links else []
    done = step.cluster(
        run, k=k, algorithm=algorithm, seed=seed, name=name, edits=edits, outliers=outliers,
        levels=levels, fresh=fresh, encoder=encoder, weights=weights, sets=sets,
        machine=Machine(device, threads, workers), progress=screen.Screen(level),
    )  # fmt: skip
    if json:
        screen.as_json(
            {"run": done.run.path, "clustering": done.path, "algorithm": done.algorithm,
             "images": done.images, "sizes": done.sizes, "outliers": done.outliers,
             "names": done.titles, "page": done.page, "warnings": done.warnings}
        )  # fmt: skip
        return
    rows = [
        (done.titles.get(c, c), size, f"{sure:.2f}", ", ".join(names))
        for c, (size, sure, names) in enumerate(zip(done.sizes, done.confidence, done.samples))
    ]
    screen.table(["cluster", "images", "confidence", "such as"], rows[:MOST])
    if len(rows) > MOST:
        screen.result(f"… and {len(rows) - MOST} smaller clusters")
    outliers = f", {done.outliers} outliers" if done.outliers else ""
    screen.result(
        f"{done.images} images in {len(done.sizes)} clusters{outliers}: "
        f"{done.path / 'assignments.csv'}"
    )
    if done.page:
        screen.result(f"see them: {done.page}")
    screen.result("next: deepclust evaluate, or deepclust export --to folders")
    if open_ and done.page:
        _show(done.page)


@app.command()
def predict(
    run: Annotated[Path, Argument(metavar="RUN", help="A run that has clusters.")],
    images: Annotated[
        Path, Argument(metavar="IMAGES", help="Folder of new pictures; those of RUN are left out.")
    ],
    clustering: Annotated[str | None, Option(help="Name under clusters/; the newest.")] = None,
    out: Annotated[
        Path | None, Option(help="CSV to write; clusters/NAME/predicted-….csv if left out.")
    ] = None,
    device: Device = "auto",
    threads: Threads = None,
    workers: Workers = 2,
    json: Json = False,
) -> None:
    """Give new pictures to the clusters of a run, and say which look like none of them.

    Example: deepclust predict runs/flowers ./new
    """
    from deepclust.steps.predict import predict as step
    from deepclust.steps.pretrain import Machine

    done = step(
        run, images, clustering=clustering, out=out,
        machine=Machine(device, threads, workers), progress=screen.Screen(level),
    )  # fmt: skip
    if json:
        screen.as_json(
            {"run": done.run.path, "path": done.path, "images": done.images,
             "skipped": done.skipped, "sizes": done.sizes, "novel": done.novel,
             "groups": done.groups, "words": done.words}
        )  # fmt: skip
        return
    screen.table(["cluster", "new images"], sorted(done.sizes.items(), key=lambda x: -x[1])[:30])
    novel = f", {done.novel} perhaps new" if done.novel else ""
    screen.result(f"{done.images} new images in {len(done.sizes)} clusters{novel}: {done.path}")


@app.command()
def evaluate(
    run: RunArgument = None,
    labels: Annotated[
        str | None,
        Option(metavar="FILE|folders", help="CSV of file_name,label; or the sub-folders' names."),
    ] = None,
    clustering: Annotated[str | None, Option(help="Name under clusters/; the newest.")] = None,
    assignments: Annotated[
        Path | None, Option(help="A CSV of file_name,cluster from elsewhere; needs no run.")
    ] = None,
    name_column: Annotated[str | None, Option(help="Column of the labels with the names.")] = None,
    label_column: Annotated[str | None, Option(help="Column with the labels.")] = None,
    baselines: Annotated[bool, Option(help="Compare with k-means on pixels and features.")] = True,
    seed: Annotated[int, Option(min=0, max=2**32 - 1, help="Of intervals and baselines.")] = 0,
    open_: Open = False,
    json: Json = False,
) -> None:
    """Score clusters against labels (NMI, ARI, ACC and more), or without any.

    Example: deepclust evaluate --labels labels.csv
    """
    from deepclust.report import cluster_rows, score_rows
    from deepclust.steps.evaluate import evaluate as step

    report = step(
        run, labels=labels, clustering=clustering, assignments=assignments,
        name_column=name_column, label_column=label_column, baselines=baselines, seed=seed,
        progress=screen.Screen(level),
    )  # fmt: skip
    if json:
        screen.as_json(report.to_json())
        return
    for header, *rows in (cluster_rows(report), score_rows(report)):
        screen.table(header, rows[:MOST])
        if len(rows) > MOST:
            screen.result(f"… and {len(rows) - MOST} smaller clusters")
    for line in report.verdict:
        screen.result(line)
    for path in report.paths:
        screen.result(str(path))
    if open_ and report.paths[-1].suffix == ".html":
        _show(report.paths[-1])


@app.command()
def export(
    run: RunArgument = None,
    to: Annotated[
        str,
        Option(help="csv, json, parquet, folders, imagefolder, embeddings, weights, onnx, …"),
    ] = "folders",
    out: Annotated[Path | None, Option(help="Where to; exports/<run>-… if left out.")] = None,
    clustering: Annotated[str | None, Option(help="Name under clusters/; the newest.")] = None,
    edits: Annotated[
        Path | None, Option(metavar="FILE", help="Fix-ups to apply first, as cluster --edits does.")
    ] = None,
    link: Annotated[bool, Option("--link", help="Links instead of copies of pictures.")] = False,
    overwrite: Annotated[
        bool, Option("--overwrite", help="Replace what an earlier export wrote there.")
    ] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Only show what would be written.")] = False,
    json: Json = False,
) -> None:
    """Hand the clusters over: as folders of pictures, tables, weights, ...

    Example: deepclust export --to folders
    """
    from deepclust.steps.export import export as step

    done = step(
        run, to=to, out=out, clustering=clustering, edits=edits, link=link, overwrite=overwrite,
        dry_run=dry_run, progress=screen.Screen(level),
    )  # fmt: skip
    if json:
        screen.as_json(asdict(done))
        return
    if dry_run:
        for line in done.planned:
            screen.result(line)
    verb = "would be written" if dry_run else "written"
    screen.result(f"{done.files} file{'s' * (done.files != 1)} {verb}: {done.path}")


def run(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code; errors become a line on standard error."""
    try:
        command = typer.main.get_command(app)
        code: Any = command.main(
            list(argv) if argv is not None else None, prog_name="deepclust", standalone_mode=False
        )
        sys.stdout.flush()
    except SystemExit:  # how click answers a pipe that nobody reads any more
        return 0
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (Exception, KeyboardInterrupt) as problem:
        if type(problem).__name__ == "Exit":
            return int(getattr(problem, "exit_code", 1))
        return endings.fail(endings.in_words(problem), debug)
    if code == 130:  # how Typer hands on Ctrl-C
        return endings.fail(Stopped("interrupted"), debug)
    return code if isinstance(code, int) else 0


def _show(path: Path) -> None:
    import webbrowser

    webbrowser.open(path.resolve().as_uri())


def main() -> None:
    """The `deepclust` command."""

    def stop(signum: int, frame: object) -> None:
        raise Stopped("stopped by a signal", signum=signum)

    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), stop)
    sys.exit(run())
