"""Giving an image its tags, once its contents are known to be as pinned; and bringing it into a registry."""

from launch.errors import LaunchError
from launch.images import engine
from launch.images.tags import PROCESSORS, REPOSITORY, for_processor
from launch.images.verify import must_be_as_pinned


def name(image: str, repository: str = REPOSITORY, push: bool = False) -> list[str]:
    """Tag an image, as repository:tag; its tags.

    Raises:
        LaunchError: it is not as pinned, or an image of uncommitted files is to be pushed.
    """
    verified = must_be_as_pinned(image)
    if push and verified.manifest.revision.endswith("-dirty"):
        raise LaunchError(f"{image} was built from uncommitted files: nobody could build it again; it is not pushed")
    lists = [f"{repository}:{tag}" for tag in verified.tags]
    of_processor = [for_processor(tag, verified.manifest.architecture) for tag in lists]
    for tag in [*lists, *of_processor]:
        engine.docker("image", "tag", image, tag)
    if push:
        for tag in of_processor:
            engine.docker("push", "--quiet", tag)
        join(lists)
    return [*lists, *of_processor]


def join(lists: list[str]) -> None:
    """Make lists of the images that the registry has of one commit, for every processor.

    Args:
        lists: names of the same commit's images; the first never moves, so that it tells which there are.
    """
    known = [for_processor(lists[0], processor) for processor in PROCESSORS]
    members = [tag for tag in known if in_registry(tag)]
    for tag in lists:
        engine.docker("buildx", "imagetools", "create", "--tag", tag, *members)


def in_registry(tag: str) -> bool:
    """Whether a registry has this.

    Raises:
        LaunchError: it did not answer.
    """
    try:
        engine.docker("buildx", "imagetools", "inspect", "--raw", tag)
    except LaunchError as error:
        if "not found" in str(error):
            return False
        raise
    return True
