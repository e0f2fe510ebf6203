-- Whether a request of the route that was sent and not answered in time, or whose connection broke, may be sent again. The
-- provider may have worked on it, and bill it twice.
ALTER TABLE routes ADD COLUMN replay_timeouts boolean NOT NULL DEFAULT false;
