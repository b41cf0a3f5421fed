"""JSON schemas, drafts 4 to 2020-12: one door, written(), and lists of the keywords that are followed."""

from octavo.structured.schema.drafts import FORMATS, SUPPORTED
from octavo.structured.schema.writer import PARTLY, written

__all__ = ["FORMATS", "PARTLY", "SUPPORTED", "written"]
