"""A figure that was written as a file, read again."""

from xml.etree import ElementTree


def parsed(path):
    root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    return root


def words(root):
    return [element.text for element in root.iter("text")]
