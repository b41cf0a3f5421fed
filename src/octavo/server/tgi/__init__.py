"""Text Generation Inference's API, so that its clients need not change."""

from octavo.server.tgi.errors import TGI

dialect = TGI
