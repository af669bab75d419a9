initialised = False


def backends_are_initialized():
    return initialised
