"""The launcher's part of a run: it starts each host's part over ssh or here, shows and logs what they print."""
