"""The report as one HTML file, which opens without a server and without a network."""

from elastic_report.page.rendering import render as render
