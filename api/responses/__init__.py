"""The Responses API as a view on the same jobs: a response is a chat job that remembers how it was asked for.

On the way in, `body` checks the request, `items` turns input items into chat messages, `conversation` puts those of
the previous response before them, `translate` makes the chat body and what is kept beside it (JobRecord.response).
On the way out, `machine` turns the job's events into a response's, with `output` for its items and `objects` for
the response itself; everything else, a whole response included, comes from that machine.
"""
