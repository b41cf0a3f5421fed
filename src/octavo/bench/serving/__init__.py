"""A load on any server, as `octavo bench serve` puts it: what is asked, when, and what came back when.

exchange.py    one request and its reply            apis/      how a server is asked; a file each
arrivals.py    when each is sent                    datasets/  what is asked; a file each
generator.py   sends them, and notes the times      figures.py what the times say
"""
