"""`osgd playground`: the local web page."""

import threading
import webbrowser

import click


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8064, show_default=True, help="Of the page; 0 for any free one."
)
@click.option("--no-browser", is_flag=True, help="Only print the address.")
def command(port: int, no_browser: bool) -> None:
    """A local web page: watch SGD, ordered SGD and a random q train.

    The problems of the paper's Figure 1, or points that you draw. The page is served to this machine alone, needs no
    network, and ends with Ctrl-C.
    """
    from ordered_sgd.lab.playground.server import Playground

    with Playground(port) as server:
        click.echo(f"Playground: {server.url} (Ctrl-C ends it)")
        if not no_browser:
            threading.Thread(target=webbrowser.open, args=(server.url,), daemon=True).start()
        server.serve_forever()
