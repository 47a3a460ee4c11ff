"""The subjects of the doctor, a file each: what gathers the facts on a host, and the checks that judge them."""
