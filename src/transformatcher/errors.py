"""What is wrong with the user's input → one clear sentence."""


class InputError(Exception):
    """Something the user gave cannot be used.

    The message names the file, the number and the way out; the command line prints it and exits with 2.
    """
