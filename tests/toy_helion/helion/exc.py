"""The errors of the toy."""


class InvalidConfig(Exception):
    pass


class NoConfigFound(Exception):
    pass
