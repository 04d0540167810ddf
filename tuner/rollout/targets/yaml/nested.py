"""A YAML file that is a text in another one, as in a ConfigMap: edited where it stands. Pure."""

from dataclasses import dataclass

import yaml

from tuner.errors import TargetError
from tuner.rollout.targets.view import Edits, View
from tuner.rollout.targets.yaml.file import YamlFile
from tuner.rollout.targets.yaml.nodes import descendants, line_of, shared_ids
from tuner.system import yaml_strict


@dataclass(frozen=True, slots=True)
class Nested:
    """The inner file, and how what is asked of it is asked of the outer one."""

    outer: YamlFile
    parent: yaml.MappingNode
    view: View
    file: YamlFile
    """The inner one, whose lines are counted as those of the outer."""

    def hand_on(self) -> None:
        """Ask the outer file for what was asked of the inner one."""
        text = self.file.edits.text
        for start, end, new in self.file.edits.changes:
            if start == end == len(text) and text.endswith("\n") and new.endswith("\n"):
                # a line at the end: it goes behind the last one, whose line end is not indented
                at = self.view.place(len(text) - 1, len(text) - 1)
                self.outer.edits.replace(*at, self.view.encode(f"\n{new[:-1]}"))
            else:
                self.outer.edits.replace(*self.view.place(start, end), self.view.encode(new))


def nested(outer: YamlFile, parent: yaml.MappingNode, node: yaml.ScalarNode) -> Nested:
    """Return the file that a text is, its nodes with their lines in the outer one.

    Raises TargetError for one that cannot be read.
    """
    view = outer.view(node)
    before = outer.edits.line(view.place(0, 1)[0]) - 1
    where = f"{outer.source}:{line_of(node)}, the text there"
    roots = yaml_strict.compose_all(view.text, source=where, error=TargetError)
    marks = {
        id(mark): mark
        for root in roots
        for part in descendants(root)
        for mark in (part.start_mark, part.end_mark)
    }
    for mark in marks.values():
        mark.line += before
    edits = Edits(view.text, outer.source)
    return Nested(outer, parent, view, YamlFile(edits, roots, shared_ids(roots)))
