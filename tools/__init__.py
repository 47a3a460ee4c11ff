"""Tools of this project's maintainers, used in a checkout: no command of the launcher or of the package needs them."""
