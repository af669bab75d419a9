import sys

from pytest_autotune.cli.main import main

sys.exit(main())
