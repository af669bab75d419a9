import os

__version__ = os.environ.get("TOY_JAXLIB", "0.11.2")
