"""What a long run needs of a machine's limits."""

OPEN_FILES = 32768  # Ray and verl keep thousands of sockets and shared files open
