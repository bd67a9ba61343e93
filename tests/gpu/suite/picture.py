"""Two kinds of pictures, as SVG: bars beside each other, and points beside the line that they should lie on.

Written by hand because the machine with the GPU has Python and nothing to draw with.
"""

from xml.sax.saxutils import escape

WIDTH, BAR, GAP, LEFT, TOP = 760, 14, 12, 230, 60
COLOURS = ["#2b6cb0", "#a0aec0", "#d69e2e"]
STYLE = "<style>text{font:12px sans-serif;fill:#1a202c}.t{font-size:15px;font-weight:bold}</style>"


def bars(title, unit, series, rows):
    """`rows` are pairs of a name and a value, or None, for each of `series`. Values are at least 0."""
    numbers = [value for _, values in rows for value in values if value is not None]
    most = max([*numbers, 1e-12])
    scale = (WIDTH - LEFT - 80) / most
    parts, y = [legend(series)], TOP
    for name, values in rows:
        parts.append(f'<text x="{LEFT - 8}" y="{y + BAR}" text-anchor="end">{escape(name)}</text>')
        for index, value in enumerate(values):
            if value is None:
                continue
            length = max(0.0, value) * scale
            parts.append(f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR}" fill="{COLOURS[index]}"/>'
                         f'<text x="{LEFT + length + 5:.1f}" y="{y + BAR - 2}">{value:.4g}</text>')
            y += BAR + 2
        y += GAP
    return image(f"{title} ({unit})", y, parts)


def scatter(title, points):
    """`points` are pairs of numbers from 0 to 1; both axes alike, with the diagonal on which they should lie."""
    side, left = 360, 70
    x, y = (lambda value: left + value * side), (lambda value: TOP + (1 - value) * side)
    parts = [f'<rect x="{left}" y="{TOP}" width="{side}" height="{side}" fill="none" stroke="#cbd5e0"/>',
             f'<line x1="{x(0)}" y1="{y(0)}" x2="{x(1)}" y2="{y(1)}" stroke="#a0aec0"/>']
    for tick in (0, 0.25, 0.5, 0.75, 1):
        parts.append(f'<text x="{x(tick):.0f}" y="{TOP + side + 16}" text-anchor="middle">{tick}</text>'
                     f'<text x="{left - 8}" y="{y(tick) + 4:.0f}" text-anchor="end">{tick}</text>')
    for asked, received in points:
        parts.append(f'<circle cx="{x(asked):.1f}" cy="{y(min(max(received, 0), 1)):.1f}" r="4" fill="{COLOURS[0]}"/>')
    return image(title, TOP + side + 30, parts)


def legend(series):
    return "".join(f'<rect x="{LEFT + 110 * index}" y="36" width="10" height="10" fill="{COLOURS[index]}"/>'
                   f'<text x="{LEFT + 110 * index + 15}" y="45">{escape(name)}</text>' for index, name in enumerate(series))


def image(title, height, parts):
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}">'
            f'{STYLE}<rect width="100%" height="100%" fill="white"/><text class="t" x="12" y="22">{escape(title)}</text>'
            + "\n".join(parts) + "</svg>\n")
