"""What replicas of a log decide, as pure code: no files, sockets, clock, threads or dice here.

    epochs     which offsets were written in which leader epoch
    state      what the metadata says of a log: replicas, leader, epoch, ISR; its changes, each one swap of one key
    election   what the controller makes of it when brokers come and go
    isr        who is in sync, and what is committed
    leader     the leader's side of a log: positions in, batches out, the high watermark, who may serve
    follower   the other side
    replica    which of the two a broker is for a log, as the metadata has it

Times are seconds of the caller's monotonic clock (`now_s`), brokers are small integers, a broker's *epoch* is the
revision at which its key was made: a process that registers anew is another broker to everything here.
"""
