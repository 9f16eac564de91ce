"""The token plane: streams go from replicas straight to the ingress, over a socket; Ray carries only the calls.

An ingress process listens (`hub`) and sends with each call where, and a ticket. The replica that gets the call
connects once for all calls of that ingress (`line`), and writes frames (`frames`) under the ticket. The call stays
open until the stream has ended, so that Ray counts, limits, drains and cancels it as any other.
"""
