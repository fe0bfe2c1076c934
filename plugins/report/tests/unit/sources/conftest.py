"""The fixtures of `sources_kit`."""

from sources_kit import leave as leave
from sources_kit import place as place
