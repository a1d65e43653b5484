"""The program's version, alone in a file so that asking for it costs nothing."""

VERSION = "0.1.0"
