def reset_cache():
    pass
