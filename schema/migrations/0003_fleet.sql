-- 0003: a fleet. What a job needs of a worker, whose it is and how far it has come; what a team may take and has
-- taken; what a worker serves; who schedules.

ALTER TABLE team ADD COLUMN weight DOUBLE PRECISION NOT NULL DEFAULT 1;   -- its part of the machines
ALTER TABLE team ADD COLUMN quota_live BIGINT NOT NULL DEFAULT 0;         -- jobs at once; 0: any number
ALTER TABLE team ADD COLUMN quota_day_s DOUBLE PRECISION NOT NULL DEFAULT 0; -- device-seconds a day; 0: any
ALTER TABLE team ADD COLUMN used_s DOUBLE PRECISION NOT NULL DEFAULT 0;   -- device-seconds, halved every 7 days …
ALTER TABLE team ADD COLUMN used_at DOUBLE PRECISION NOT NULL DEFAULT 0;  -- … as of then
ALTER TABLE team ADD COLUMN day BIGINT NOT NULL DEFAULT 0;                -- since 1970 (UTC) …
ALTER TABLE team ADD COLUMN day_s DOUBLE PRECISION NOT NULL DEFAULT 0;    -- … and what was used on it
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

-- a lane: jobs of one team that need the same of a worker, in their order
DROP INDEX job_ready;
CREATE INDEX job_next ON job(team_id, class, ranks, priority DESC, id)
    WHERE state IN ('ready', 'dispatched') AND paused = 0;
-- Which of several indexes a statement uses it says by a condition of the index that is true anyway: a planner that
-- knows only what was there when it last counted would take the one that seemed empty.
DROP INDEX job_lease;
CREATE INDEX job_lease ON job(lease_until) WHERE state IN ('running', 'cancelling') AND lease_until >= 0;
DROP INDEX job_key_live;
CREATE UNIQUE INDEX job_key_live ON job(key) WHERE state IN ('running', 'cancelling') AND key <> '';
DROP INDEX job_key_done;
CREATE INDEX job_key_done ON job(key) WHERE state = 'succeeded' AND key <> '';
DROP INDEX job_active;
CREATE INDEX job_active ON job(run_id)
    WHERE state IN ('ready', 'dispatched', 'running', 'cancelling') AND run_id > 0;
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

-- What teams ask for: specs submitted again by the clock, runs whose models have changed since, captures that do not
-- stay for ever.

ALTER TABLE run ADD COLUMN file TEXT;                                     -- the spec's, absolute
ALTER TABLE run ADD COLUMN stale_at DOUBLE PRECISION;                     -- a later submission was of other content
ALTER TABLE run ADD COLUMN stale_why TEXT;
ALTER TABLE artefact ADD COLUMN expired_at DOUBLE PRECISION;              -- kept its time: the bytes may go

DROP TABLE tick;                                                          -- nothing wrote them before
DROP TABLE schedule;

CREATE TABLE schedule (
    id          {id},
    team_id     BIGINT NOT NULL REFERENCES team(id),
    name        TEXT NOT NULL,
    file        TEXT NOT NULL,               -- of the spec, absolute
    cron        TEXT NOT NULL,               -- scheduler/cron.h
    zone        TEXT NOT NULL,               -- base/zone.h
    catch_up    TEXT NOT NULL CHECK (catch_up IN ('one', 'all', 'none')),
    again       BIGINT NOT NULL,             -- submit as `kvmill submit --again` does
    paused      BIGINT NOT NULL,
    since_at    DOUBLE PRECISION NOT NULL,   -- ticks count from here: added or resumed
    created_at  DOUBLE PRECISION NOT NULL,
    UNIQUE (team_id, name)
);

CREATE TABLE tick (
    schedule_id BIGINT NOT NULL REFERENCES schedule(id),
    at          DOUBLE PRECISION NOT NULL,   -- when it was due
    until_at    DOUBLE PRECISION NOT NULL,   -- who fires it must have ended by then
    ended_at    DOUBLE PRECISION,
    status      BIGINT,                      -- base/status.def
    message     TEXT,
    PRIMARY KEY (schedule_id, at)
);

DROP VIEW v_runs;
CREATE VIEW v_runs AS
SELECT r.id AS run, t.name AS team, p.name AS pair, r.state AS state, r.priority AS priority,
       r.created_at AS created_at, r.finished_at AS finished_at, s.sha AS spec_sha, r.key AS key,
       r.file AS file, r.stale_at AS stale_at, r.stale_why AS stale_why
FROM run r JOIN spec s ON s.id = r.spec_id JOIN pair p ON p.id = s.pair_id
     JOIN team t ON t.id = p.team_id;

DROP VIEW v_queue;
CREATE VIEW v_queue AS
SELECT j.id AS job, j.run_id AS run, p.name AS pair, j.kind_name AS kind, j.label AS label,
       j.state AS state, j.priority AS priority, j.attempt AS attempt, j.crashes AS crashes,
       j.run_after AS run_after, j.lease_until AS lease_until, w.name AS worker,
       j.status AS status, j.message AS message, j.created_at AS created_at,
       j.started_at AS started_at, j.finished_at AS finished_at, j.equal_id AS equal_job,
       j.key AS key, j.waits AS waits, t.name AS team, j.class AS class, j.ranks AS ranks,
       j.paused AS paused, j.done AS done, j.total AS total, j.unit AS unit
FROM job j JOIN run r ON r.id = j.run_id JOIN spec s ON s.id = r.spec_id
     JOIN pair p ON p.id = s.pair_id JOIN team t ON t.id = p.team_id
     LEFT JOIN worker w ON w.id = j.worker_id;

DROP VIEW v_pairs;
CREATE VIEW v_pairs AS
SELECT t.name AS team, p.name AS pair, COUNT(r.id) AS runs, MAX(r.id) AS last_run,
       (SELECT z.state FROM run z JOIN spec y ON y.id = z.spec_id WHERE y.pair_id = p.id
        ORDER BY z.id DESC LIMIT 1) AS last_state,
       MAX(r.created_at) AS last_created_at, MAX(r.finished_at) AS last_finished_at,
       COUNT(r.stale_at) AS stale,
       (SELECT z.stale_why FROM run z JOIN spec y ON y.id = z.spec_id
        WHERE y.pair_id = p.id AND z.stale_at IS NOT NULL
        ORDER BY z.stale_at DESC, z.id DESC LIMIT 1) AS stale_why
FROM pair p JOIN team t ON t.id = p.team_id LEFT JOIN spec s ON s.pair_id = p.id
     LEFT JOIN run r ON r.spec_id = s.id
GROUP BY t.name, p.id, p.name;

DROP VIEW v_artefacts;
CREATE VIEW v_artefacts AS
SELECT p.name AS pair, j.run_id AS run, j.id AS job, j.kind_name AS kind, j.label AS label,
       a.name AS output, a.sha AS sha, a.bytes AS bytes, j.equal_id AS equal_job,
       CASE WHEN j.kind_name = 'capture' AND a.name = 'capture' THEN 1 ELSE 0 END
           AS sensitive,                     -- what was captured can be read out of it
       a.expired_at AS expired_at
FROM artefact a JOIN job j ON j.id = a.job_id JOIN run r ON r.id = j.run_id
     JOIN spec s ON s.id = r.spec_id JOIN pair p ON p.id = s.pair_id;

CREATE VIEW v_workers AS
SELECT w.name AS worker, w.host AS host, w.machine AS machine, w.classes AS classes,
       w.ranks AS ranks, w.memory_mib AS memory_mib, w.started_at AS started_at,
       w.seen_at AS seen_at, w.gone_at AS gone_at, w.drain AS drain,
       (SELECT COUNT(*) FROM job j WHERE j.worker_id = w.id
        AND j.state IN ('running', 'cancelling') AND j.lease_until >= 0) AS live
FROM worker w;

CREATE VIEW v_teams AS
SELECT t.name AS team, t.weight AS weight, t.quota_live AS quota_live,
       t.quota_day_s AS quota_day_s, t.used_s AS used_s, t.used_at AS used_at,
       t.paused AS paused, CASE WHEN t.token_sha IS NULL THEN 0 ELSE 1 END AS has_token,
       (SELECT COUNT(*) FROM job j WHERE j.team_id = t.id
        AND j.state IN ('running', 'cancelling') AND j.lease_until >= 0) AS live,
       t.created_at AS created_at
FROM team t;

CREATE VIEW v_schedules AS
SELECT s.name AS schedule, t.name AS team, s.file AS file, s.cron AS cron, s.zone AS zone,
       s.catch_up AS catch_up, s.again AS again, s.paused AS paused, s.since_at AS since_at,
       (SELECT MAX(x.at) FROM tick x WHERE x.schedule_id = s.id) AS last_tick_at,
       (SELECT x.status FROM tick x WHERE x.schedule_id = s.id ORDER BY x.at DESC LIMIT 1)
           AS last_status,
       (SELECT x.message FROM tick x WHERE x.schedule_id = s.id ORDER BY x.at DESC LIMIT 1)
           AS last_message
FROM schedule s JOIN team t ON t.id = s.team_id;
