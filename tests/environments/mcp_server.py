"""An MCP server for the tests; over stdio where it is started."""

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


if __name__ == "__main__":
    server.run()
