"""A report taken apart, for tests of what is in it."""

from html.parser import HTMLParser

VOID = {"meta", "br", "link", "img", "input", "hr"}


class Page(HTMLParser):
    """Collects what a report is made of, and complains of tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.headings: list[str] = []
        self.sources: list[str] = []
        self.figures = 0
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]
        self.figures += any(name == "class" and value == "plotly-graph-div" for name, value in attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("h1", "h2"):
            self.headings.append(data)
        if "script" not in self.open and "style" not in self.open:
            self.text += data
