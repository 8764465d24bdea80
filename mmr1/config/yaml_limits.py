"""YAML files within limits, and their errors in one line: before OmegaConf sees them.

Neither PyYAML nor every version of OmegaConf bounds what aliases or brackets make of a short text.
"""

from __future__ import annotations

from pathlib import Path

import yaml

LONGEST, DEEPEST, MOST_NODES = 1 << 18, 32, 10_000
"""Of a configuration file: characters, levels, and nodes with those of its aliases."""


def read_mapping(path: Path) -> tuple[str, yaml.Node]:
    """Read a YAML file: its text, and the mapping that it is.

    Raises:
        ValueError: If it cannot be read, is no mapping, or is larger than any configuration.
    """
    try:
        text = path.read_text(encoding="utf-8")
        if len(text) > LONGEST:
            raise yaml.YAMLError(f"more than {LONGEST:,} characters")
        node = yaml.compose(text) or yaml.MappingNode("tag:yaml.org,2002:map", [])
        _check_nodes(node)
        yaml.safe_load(text)
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {one_line(error)}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"{path} is not valid YAML: {one_line(error)}") from error
    except (AttributeError, RecursionError) as error:  # PyYAML's, of some texts and their tags
        raise ValueError(f"{path} is not valid YAML: it has a value that cannot be read") from error
    if not isinstance(node, yaml.MappingNode):
        raise ValueError(f"{path}: the configuration must be a mapping of keys to values")
    return text, node


def _check_nodes(root: yaml.Node) -> None:
    """Raises yaml.YAMLError for a tree that no configuration is."""
    waiting, count = [(root, 0)], 0
    while waiting:
        node, depth = waiting.pop()
        count += 1
        if depth > DEEPEST or count > MOST_NODES:
            what = f"{DEEPEST} levels" if depth > DEEPEST else f"{MOST_NODES:,} values"
            raise yaml.MarkedYAMLError(problem=f"more than {what}", problem_mark=node.start_mark)
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    raise yaml.MarkedYAMLError(
                        problem="a key must be a word", problem_mark=key.start_mark
                    )
                waiting.append((value, depth + 1))
        elif isinstance(node, yaml.SequenceNode):
            waiting += ((value, depth + 1) for value in node.value)


def one_line(error: Exception) -> str:
    """Write an error as one line, without the names that OmegaConf has for its own objects."""
    lines = [line.strip() for line in str(error).splitlines()]
    lines = [line.replace("full_key: ", "at ") for line in lines if "object_type=" not in line]
    return " ".join(filter(None, lines)).replace('in "<unicode string>", ', "in ")
