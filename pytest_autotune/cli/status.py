"""The exit statuses of the command."""

#: Nothing is wrong.
OK = 0
#: What was looked for is there: a defect for ``check``, a difference with ``diff --exit-code``, a conflict of git.
FOUND = 1
#: Arguments that make no sense, an input that cannot be read, an output that cannot be written: as pytest's own.
FAILED = 4
#: Ctrl-C, as shells report it.
INTERRUPTED = 130
#: Nobody reads on, as shells report it.
BROKEN_PIPE = 141
