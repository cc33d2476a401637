"""What a training step frees stays with the process, for the next step."""

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # numbers of glibc's malloc.h
_LARGE = 2**31 - 1, 2**30, 2**25  # bytes; older versions refuse a threshold of mapping above the last


def keep_freed_memory() -> bool:
    """Whether malloc could be told not to give freed memory back to the system: glibc's can.

    By its own rules it may give some tens of megabytes back in every step and fault them in again in the next: a step
    of LeNet on 64 images then takes nearly half as long again, until something larger has been freed once.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, or another system
        return False
    trims, *maps = _LARGE
    return bool(mallopt(_TRIM_THRESHOLD, trims)) and any(mallopt(_MMAP_THRESHOLD, size) for size in maps)
