"""What a job leaves behind: the bytes of its streams and the files it made. Knows no process."""
