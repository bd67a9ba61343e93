"""What the suite puts on this machine, and takes away again: that and nothing else, whoever has put what there since."""

import glob
import os
import shutil

# What something is called until it is listed; nobody else has such names.
NEW = ".gpool-gpu-suite"
# Of what is removed whatever it is.
ANYTHING = "-"


class Placed:
    """Files and directories, each with what it is known by. `mark` is a file that lists them, so that the next run can remove what one
    that was killed has left."""

    def __init__(self, mark):
        self.mark, self.all = mark, []

    def left_by_another(self):
        """Whether a run that was killed has left something, which the next `take_away` takes along."""
        if not os.path.exists(self.mark):
            return False
        with open(self.mark) as file:
            lines = [line.rstrip("\n").split(" ", 1) for line in file]
        self.all = [(place, known) for known, place in lines]
        return True

    def has(self, place):
        return any(its == place for its, _ in self.all)

    def copy(self, source, place):
        os.makedirs(os.path.dirname(place), exist_ok=True)
        remove(place + NEW)
        shutil.copytree(source, place + NEW) if os.path.isdir(source) else shutil.copy(source, place + NEW)
        self._settle(place)

    def write(self, place, text, mode=0o644):
        with open(place + NEW, "w") as file:
            file.write(text)
        os.chmod(place + NEW, mode)
        self._settle(place)

    def expect(self, place):
        """Lists what others of ours will put where nothing is now."""
        if not os.path.lexists(place):
            self._list(place, ANYTHING)

    def _settle(self, place):
        # Listed first: between the two there is nothing at `place` but what is to be removed.
        self._list(place, known_by(place + NEW))
        os.rename(place + NEW, place)

    def _list(self, place, known):
        self.all.append((place, known))
        with open(self.mark, "a") as file:
            file.write(f"{known} {place}\n")

    def take_away(self):
        for place, known in reversed(self.all):
            remove(place + NEW)
            if known in (ANYTHING, known_by(place)):
                remove(place)
        self.all = []
        remove(self.mark)


def known_by(place):
    """To the nanosecond, when its content was changed; nothing where nothing is. Of a directory that of its first file: the
    supervisor adds some of its own, and where layers lie over each other its inode may have another number each time."""
    if os.path.isdir(place):
        place = next(iter(sorted(path for path in glob.glob(f"{place}/**", recursive=True) if os.path.isfile(path))), place)
    return str(os.lstat(place).st_mtime_ns) if os.path.lexists(place) else None


def remove(place):
    """Removes a file or a directory, if it is there."""
    if os.path.isdir(place) and not os.path.islink(place):
        shutil.rmtree(place, ignore_errors=True)
    elif os.path.lexists(place):
        os.remove(place)
