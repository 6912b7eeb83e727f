-- 0003: a fleet. What a job needs of a worker, whose it is and how far it has come; what a team may take and has
-- taken; what a worker serves; who schedules.

ALTER TABLE team ADD COLUMN weight DOUBLE PRECISION NOT NULL DEFAULT 1;   -- its part of the machines
ALTER TABLE team ADD COLUMN quota_live BIGINT NOT NULL DEFAULT 0;         -- jobs at once; 0: any number
ALTER TABLE team ADD COLUMN quota_day_s DOUBLE PRECISION NOT NULL DEFAULT 0; -- device-seconds in 24 hours; 0: any
ALTER TABLE team ADD COLUMN used_s DOUBLE PRECISION NOT NULL DEFAULT 0;   -- device-seconds, halved every 7 days …
ALTER TABLE team ADD COLUMN used_at DOUBLE PRECISION NOT NULL DEFAULT 0;  -- … as of then
ALTER TABLE team ADD COLUMN paused BIGINT NOT NULL DEFAULT 0;
ALTER TABLE team ADD COLUMN token_sha TEXT;                               -- SHA-256 of the token; never the token

ALTER TABLE job ADD COLUMN team_id BIGINT REFERENCES team(id);
ALTER TABLE job ADD COLUMN class TEXT NOT NULL DEFAULT 'cpu';             -- cpu, gpu, small (several to a claim)
ALTER TABLE job ADD COLUMN ranks BIGINT NOT NULL DEFAULT 1;               -- processes of its gang; 1: none
ALTER TABLE job ADD COLUMN memory_mib BIGINT NOT NULL DEFAULT 0;
ALTER TABLE job ADD COLUMN paused BIGINT NOT NULL DEFAULT 0;
ALTER TABLE job ADD COLUMN sent_at DOUBLE PRECISION;                      -- when its last hint was sent
ALTER TABLE job ADD COLUMN done DOUBLE PRECISION;                         -- of total, in unit: the live attempt
ALTER TABLE job ADD COLUMN total DOUBLE PRECISION;
ALTER TABLE job ADD COLUMN unit TEXT;

UPDATE job SET team_id = (SELECT p.team_id FROM run r JOIN spec s ON s.id = r.spec_id
                          JOIN pair p ON p.id = s.pair_id WHERE r.id = job.run_id);

CREATE INDEX job_next ON job(team_id, class, ranks, priority DESC, id)
    WHERE state IN ('ready', 'dispatched');
CREATE INDEX job_sent ON job(sent_at) WHERE state = 'dispatched';

ALTER TABLE worker ADD COLUMN classes TEXT NOT NULL DEFAULT 'cpu small';
ALTER TABLE worker ADD COLUMN ranks BIGINT NOT NULL DEFAULT 1;            -- the greatest gang that it starts
ALTER TABLE worker ADD COLUMN memory_mib BIGINT NOT NULL DEFAULT 0;
ALTER TABLE worker ADD COLUMN drain BIGINT NOT NULL DEFAULT 0;            -- asked to stop
ALTER TABLE worker ADD COLUMN seen_at DOUBLE PRECISION;

CREATE TABLE leader (
    name        TEXT PRIMARY KEY,
    holder      TEXT NOT NULL,               -- as a worker's name
    until_at    DOUBLE PRECISION NOT NULL
);
