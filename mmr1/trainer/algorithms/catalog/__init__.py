"""The built-in algorithms, one file per algorithm or per family with the same body.

Each file lists its algorithms in ``SPECS``; every file here is found by itself. A spec says what
the configuration must know, and its ``build`` composes an advantage and a loss into an
``Algorithm``. Import torch, and the modules that import it, only inside functions: reading a
configuration imports these files.
"""
