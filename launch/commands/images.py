"""`run.sh images`: build images from the pins, look into them, name them, and bring them to hosts."""

import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ascend_quant.exits import FAILED, WRONG_USE, fail
from launch.errors import LaunchError
from launch.images.lock.command import lock, try_out

if TYPE_CHECKING:
    from launch.images.targets import Target

images_app = typer.Typer(no_args_is_help=True, help="Pinned images: lock, build, verify, tag, save, load, run.")
images_app.command()(lock)
images_app.command("try")(try_out)

Json = Annotated[bool, typer.Option("--json", help="Print JSON alone.")]
Image = Annotated[str, typer.Argument(help="An image, by its name or id.")]
Folder = Annotated[Path, typer.Option("--to", help="Folder that is written to.")]
Repository = Annotated[
    str, typer.Option(help="Image name to tag, with registry, such as registry.example/ascend-quant.")
]
DEFAULT_REPOSITORY = "ascend-quant"  # launch.images.verify.REPOSITORY


@contextmanager
def failing(code: int = FAILED) -> Iterator[None]:
    """Ends the command with the message of a LaunchError, or of a file that cannot be read or written."""
    try:
        yield
    except LaunchError as error:
        fail(str(error), code)
    except OSError as error:
        fail(f"{error.filename or 'a file'}: {error.strerror or error}", code)


@contextmanager
def looking(image: str) -> Iterator[None]:
    """Says on stderr that it takes a while: a container starts, and tells all it has."""
    from rich.console import Console

    with Console(stderr=True).status(f"looking into {image}"):
        yield


@contextmanager
def bars(in_bytes: bool) -> Iterator[Callable[[str, int, int], None]]:
    """Progress on stderr: a bar for each thing that is told of."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    amount = DownloadColumn() if in_bytes else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), amount, TimeRemainingColumn())
    progress, tasks = Progress(*columns, console=Console(stderr=True)), {}

    def tell(what: str, done: int, total: int) -> None:
        if what not in tasks:
            progress.start()
            tasks[what] = progress.add_task(what)
        progress.update(tasks[what], completed=done, total=max(done, total))

    try:
        yield tell
    finally:
        if tasks:  # else it would print an empty line
            progress.stop()


def known(names: list[str]) -> "list[Target]":
    """The targets of these names; others are wrong use."""
    from launch.images.targets import target

    with failing(WRONG_USE):
        return [target(name) for name in names]


@images_app.command("list")
def list_targets(as_json: Json = False) -> None:
    """What can be built: targets, stacks, bases, and whether each is pinned to the last digit."""
    from rich.console import Console
    from rich.table import Table

    from launch.images.lock.packages import loose
    from launch.images.targets import targets

    rows = [
        {
            "target": one.name,
            "stack": one.stack,
            "chip": one.chip,
            "base": one.base.partition("@")[0],
            "digest": one.base.partition("@")[2] or None,
            "locks": [file.name for file in one.locks],
            "loose": loose(one),
        }
        for one in targets().values()
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    table = Table("target", "base", "digest", "packages", box=None)
    for row in rows:
        table.add_row(
            row["target"], row["base"], row["digest"] or "not pinned", ", ".join(row["locks"]) or "not locked"
        )
    for column in table.columns:
        column.no_wrap = True
    Console(width=200).print(table)
    for row in rows:
        if row["loose"]:
            typer.echo(f"{row['target']} is not pinned: {' and '.join(row['loose'])}")


@images_app.command()
def build(
    targets: Annotated[list[str], typer.Argument(help="As `images list` names them.")],
    repository: Repository = DEFAULT_REPOSITORY,
    wheels: Annotated[Path | None, typer.Option(help="Folder of files that are taken before the index's.")] = None,
    index_url: Annotated[str | None, typer.Option(help="A package index in place of the usual one.")] = None,
    extra_index_url: Annotated[str | None, typer.Option(help="A package index beside it.")] = None,
    ca: Annotated[Path | None, typer.Option(help="File of a certificate authority, for the build alone.")] = None,
    earlier: Annotated[
        str | None, typer.Option(help="An image in a registry: its layers are taken where nothing has changed.")
    ] = None,
    dirty: Annotated[
        bool, typer.Option("--dirty", help="Build files that differ from the commit; tags say so.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the command, and end.")] = False,
) -> None:
    """Build images with docker buildx, look into each, and tag those that are as pinned."""
    from launch.images import build as building
    from launch.images import engine
    from launch.images.verify import name

    chosen = known(targets)
    with failing(WRONG_USE):
        building.must_be_repository(repository)
        building.must_be_pinned(chosen)
        sources = building.Sources(wheels, index_url, extra_index_url, ca, earlier)
        command = building.command(chosen, sources, building.revision(dirty), building.project_version())
    typer.echo(shlex.join(map(building.without_login, command)), err=not dry_run)
    if dry_run:
        return
    with failing():
        if engine.keeps_attestations():
            command += building.ATTESTED
        else:
            typer.echo(building.NOT_ATTESTED, err=True)
        building.build(command)
    for target in chosen:
        image = building.working_name(target)
        with failing(), looking(image):
            made = name(image, repository)
        typer.echo("\n".join(made))


@images_app.command()
def verify(
    image: Image,
    manifest: Annotated[Path | None, typer.Option(help="File that the manifest is written to.")] = None,
    as_json: Json = False,
) -> None:
    """Compare an image's contents with its stack's pinned versions, and say how to fix each difference.

    Exit status: 0; 1 if anything differs; 2 for wrong use.
    """
    from launch.images.verify import verify as look_into

    with failing(), looking(image):
        verified = look_into(image, manifest)
    typer.echo(verified.as_json() if as_json else "\n".join(verified.lines()))
    raise typer.Exit(FAILED if verified.differences else 0)


@images_app.command()
def tag(
    image: Image,
    repository: Repository = DEFAULT_REPOSITORY,
    push: Annotated[bool, typer.Option("--push", help="Push the tags to the repository's registry.")] = False,
    as_json: Json = False,
) -> None:
    """Name an image after what is in it; refused where that is not as pinned."""
    from launch.images.build import must_be_repository
    from launch.images.verify import name

    with failing(WRONG_USE):
        must_be_repository(repository)
    with failing(), looking(image):
        made = name(image, repository, push)
    typer.echo(json.dumps(made) if as_json else "\n".join(made))


@images_app.command()
def save(
    image: Annotated[str, typer.Argument(help="A target, for ascend-quant:TARGET, or an image by its name.")],
    to: Folder,
) -> None:
    """Write an image into a compressed archive, with its sha256 and its manifest beside it."""
    from launch.images.archive import save as write

    with failing(), bars(in_bytes=True) as tell:
        archive, verified = write(image, to, tell)
    if verified.differences:
        typer.echo("\n".join(["not as pinned:", *verified.lines()]), err=True)
    typer.echo(str(archive))


@images_app.command()
def load(
    archive: Annotated[Path, typer.Argument(help="What `images save` wrote.")],
    cluster: Annotated[
        str | None, typer.Option(help="An inventory's name, or the path of a .yaml file.  [default: this machine]")
    ] = None,
) -> None:
    """Bring an archive into the Docker engine of this machine, or of all hosts of an inventory at the same time."""
    from launch.images.archive import check, places
    from launch.images.archive import load as bring
    from launch.inventory import load as load_inventory
    from launch.plan.job import must_be_said

    with failing(WRONG_USE):
        must_be_said({"--cluster": cluster})
        where = places(load_inventory(cluster) if cluster is not None else None)
    with failing(), bars(in_bytes=True) as tell:
        check(archive, tell)
        loaded = bring(archive, where, tell)
    for one in loaded:
        typer.echo(f"{one.place}: {one.name} {one.image.id}")


@images_app.command()
def run(
    chip: Annotated[str, typer.Argument(metavar="A2|A3", help="Of this host.")],
    words: Annotated[list[str], typer.Argument(metavar="-- COMMAND", help="A verb or program of the image.")],
    stack: Annotated[str | None, typer.Option(help="Of docker/stacks.yaml.  [default: the newest]")] = None,
    image: Annotated[str | None, typer.Option(help="Its name.  [default: ascend-quant:TARGET]")] = None,
    devices: Annotated[str | None, typer.Option(help="NPUs by number, as 0,1.  [default: all]")] = None,
    user: Annotated[str | None, typer.Option(help="uid or uid:gid.  [default: root]")] = None,
    cache: Annotated[Path | None, typer.Option(help="Folder that keeps what is compiled.")] = None,
    mounts: Annotated[
        list[str] | None, typer.Option("--mount", help="/on/the/host:/in/the/container[:ro]; repeatable.")
    ] = None,
    shm: Annotated[int, typer.Option(min=1, help="GiB of /dev/shm, at most.")] = 64,
    now: Annotated[bool, typer.Option("--start", help="Run the line here, and end as it does.")] = False,
) -> None:
    """Print the `docker run` line of an image on a host with NPUs: devices, driver, network, memory; or run it."""
    from launch.images import run as running

    wanted = running.Wanted(image, devices, user, cache, mounts or [], shm)
    with failing(WRONG_USE):
        line = running.line(running.target_for(chip.upper(), stack), words, wanted)
    typer.echo(line, err=now)
    if now:
        with failing():
            code = running.start(line)
        raise typer.Exit(code)


@images_app.command()
def wheelhouse(
    target: Annotated[str, typer.Argument(help="As `images list` names them.")],
    to: Folder,
    python_platform: Annotated[
        str | None, typer.Option(help="The hosts', as aarch64-manylinux_2_34.  [default: this machine's]")
    ] = None,
) -> None:
    """Make a folder from which a host without containers and network installs a stack. 1: something is missing."""
    from launch.images.wheelhouse import architecture, bundle, here, must_be_new

    (chosen,) = known([target])
    platform = python_platform or here()
    with failing(WRONG_USE):
        architecture(platform)
        must_be_new(to)
    with failing(), bars(in_bytes=False) as tell:
        missing = bundle(chosen, to, platform, tell)
    if missing:
        fail("\n".join(f"missing: {one.what}: {one.why}" for one in missing), FAILED)
    typer.echo(f"{to}: copy it to the hosts, and run install.sh there")
