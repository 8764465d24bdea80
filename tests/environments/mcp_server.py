"""An MCP server for the tests; over stdio where it is started."""

import asyncio
import io

from mcp.server import MCPServer
from mcp.server.mcpserver import Image
from PIL import Image as Pictures

server = MCPServer("colours")


@server.tool()
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


@server.tool()
def paint(red: int) -> Image:
    """Paint a square."""
    file = io.BytesIO()
    Pictures.new("RGB", (56, 56), (red, 0, 0)).save(file, "PNG")
    return Image(data=file.getvalue(), format="png")


@server.tool()
def draw() -> Image:
    """Draw as a program: Pillow would hand it to Ghostscript."""
    drawn = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n"
    return Image(data=drawn, format="png")


@server.tool()
def clear() -> Image:
    """Paint nothing: all of it is transparent."""
    file = io.BytesIO()
    Pictures.new("RGBA", (56, 56)).save(file, "PNG")
    return Image(data=file.getvalue(), format="png")


@server.tool()
async def wait(seconds: float) -> str:
    """Take so long."""
    await asyncio.sleep(seconds)
    return "late"


if __name__ == "__main__":
    server.run()
