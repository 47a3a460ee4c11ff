"""Giving an image its tags, once its contents are known to be as pinned."""

from launch.errors import LaunchError
from launch.images import engine
from launch.images.tags import REPOSITORY
from launch.images.verify import must_be_as_pinned


def name(image: str, repository: str = REPOSITORY, push: bool = False) -> list[str]:
    """Tag an image, as repository:tag; its tags.

    Raises:
        LaunchError: it is not as pinned, or an image of uncommitted files is to be pushed.
    """
    verified = must_be_as_pinned(image)
    if push and verified.manifest.revision.endswith("-dirty"):
        raise LaunchError(f"{image} was built from uncommitted files: nobody could build it again; it is not pushed")
    made = [f"{repository}:{tag}" for tag in verified.tags]
    for tag in made:
        engine.docker("image", "tag", image, tag)
    for tag in made if push else []:
        engine.docker("push", "--quiet", tag)
    return made
