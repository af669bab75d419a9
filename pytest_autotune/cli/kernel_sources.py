"""Whether a kernel that a cache names is still in the source, found out by reading and never by importing."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path


class Sources:
    """The modules below a folder.

    :param root: the folder, or one of those that modules are imported from.
    """

    def __init__(self, root: Path) -> None:
        self._roots = [folder for folder in (root, root / "src") if folder.is_dir()]
        self.lacks = lru_cache(maxsize=None)(self._lacks)

    def _lacks(self, kernel: str) -> str:
        """Why there can be no such kernel; empty where there is one, or where the source is not here to be asked.

        :param kernel: ``module.qualname``.
        """
        words = kernel.split(".<locals>", 1)[0].split(".")
        if not all(word.isidentifier() for word in words):
            return ""
        for root in self._roots:
            folder = root
            for number, word in enumerate(words):
                file = folder / f"{word}.py"
                if file.is_file():
                    return self._missing_name(file, words[number + 1 :], kernel)
                if not (folder / word).is_dir():
                    compiled = any(folder.glob(f"{word}.*"))
                    if number and not compiled and (folder / "__init__.py").is_file():
                        return self._missing_name(folder / "__init__.py", words[number:], kernel)
                    break
                folder /= word
        return ""

    @staticmethod
    def _missing_name(file: Path, names: list[str], kernel: str) -> str:
        try:
            text = file.read_text(errors="replace")
        except OSError:
            return ""
        # As a word anywhere: it may be defined, assigned or imported.
        gone = next((name for name in names if not re.search(rf"\b{re.escape(name)}\b", text)), "")
        return f"{kernel}: there is no {gone} in {file}" if gone else ""
