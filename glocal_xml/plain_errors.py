"""Which errors a user can mend, and one line that says so."""

_LONGEST_MESSAGE = 700
# What safetensors and torch say where a disk or the memory is full; torch may only say that a file is too short.
_NO_ROOM = ("No space left on device", "File too large", "can't allocate memory")
_CUT_OFF = ("PytorchStreamWriter failed writing", "inline_container.cc", "iostream error")


def mendable(error: BaseException | None) -> BaseException | None:
    """What a user can mend: a mistake, or what the system refuses, also where a library made something else of it."""
    while error is not None:
        known = any(words in str(error) for words in (*_NO_ROOM, *_CUT_OFF))
        if known or isinstance(error, ValueError | OSError | MemoryError):
            return error
        error = error.__cause__
    return None


def one_line(error: BaseException) -> str:
    """The message of an error, on one line that is not too long."""
    message = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        # Without its number.
        message = f"{error.filename}: {error.strerror}"
    if any(words in message for words in _CUT_OFF):
        message = f"a file could not be written whole, or is damaged; is the disk full? ({message})"
    return message if len(message) <= _LONGEST_MESSAGE else f"{message[: _LONGEST_MESSAGE - 150]} … {message[-150:]}"
