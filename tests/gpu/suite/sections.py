"""Sections of a stage: one that breaks off costs the others nothing, and fails the stage at its end."""

import contextlib

from .tenant import TenantError


class Sections:
    """Each is a `with sections.one(name):`; the stage ends with `end`."""

    def __init__(self, record):
        self.record, self.wrong = record, []

    @contextlib.contextmanager
    def one(self, name):
        """Whatever breaks off what is done in it is told; who gives up the whole stage is not held up."""
        try:
            yield
        except Exception as error:  # Whatever it is: the other sections still count.
            said = f"{name} breaks off, {type(error).__name__}: {error}"
            self.record.note(said)
            self.wrong.append(said)

    def end(self):
        """Raises TenantError with all that was wrong, if something was."""
        if self.wrong:
            raise TenantError("; ".join(self.wrong))
