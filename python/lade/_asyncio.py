# SPDX-License-Identifier: Apache-2.0
"""``await ticket``: a future of the running loop for a transfer.

    messenger's thread -- call_soon_threadsafe --> loop -- set_result / set_exception --> task

A task that is cancelled cancels the transfer, as with the futures of asyncio; ``asyncio.shield`` keeps it from that. A loop that is
closed before the transfer is over hears nothing; the transfer goes on.
"""

import asyncio


def _settle(future, ticket):
    """In the loop's thread: the transfer is over."""
    if future.done():
        return
    error = ticket.exception()
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(ticket.result())


def wait(ticket):
    """The iterator behind ``await ticket``."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def over(finished):
        try:
            loop.call_soon_threadsafe(_settle, future, finished)
        except RuntimeError:
            if not loop.is_closed():
                raise

    def dropped(dead):
        if dead.cancelled():
            ticket.cancel()

    future.add_done_callback(dropped)
    ticket.add_done_callback(over)
    return future.__await__()
