"""Runs a program, and then the statements that are its tests. Usage: -c SCRIPT FILE.

Standard input holds a token, a line, and then the statements, which are read before the program runs: it finds its
standard input at its end. The token, turned round, says that the tests have run.
"""


def main():
    import os
    import sys
    import types

    read, write, pieces = os.read, os.write, []
    while piece := read(0, 1 << 16):
        pieces.append(piece)
    token, _, statements = b"".join(pieces).partition(b"\n")
    path = sys.argv[1]
    with open(path, "rb") as file:
        program = compile(file.read(), path, "exec")
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    module.__file__ = path
    sys.argv = [path]
    exec(program, module.__dict__)
    exec(compile(statements, "<tests>", "exec"), module.__dict__)
    sys.stdout.flush()
    write(1, b"\n" + token[::-1] + b"\n")


main()
