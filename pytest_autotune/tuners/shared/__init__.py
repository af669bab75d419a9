"""Code that several tuners use, without the digests of source (:mod:`pytest_autotune.tuners.source`)."""
