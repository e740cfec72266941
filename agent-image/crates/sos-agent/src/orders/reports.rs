//! Reports to controllers: sessions, flows begun without an order, paths, plain connections (spec/order.md clauses 7 and 11 to 14).

use sos_wire::order::{MAX_FLOWS, MAX_REPORTED};
use sos_wire::{
    ControllerId, FlowReport, OrderBody, PathReport, PlainReport, ReportedFlow, SessionReport, SessionUuid,
};

use super::{Controller, Env, OrderProtocol, REPORT_INTERVAL, WATCHED_FOR};

impl OrderProtocol {
    /// Path reports, for each watching controller (order.md clause 13).
    pub fn tell_paths(&mut self, reports: &[PathReport], env: &Env<'_>) -> Vec<Vec<u8>> {
        let bodies: Vec<_> = reports.iter().map(|report| OrderBody::PathReport(report.clone())).collect();
        self.tell_watching(&bodies, env)
    }

    /// Reports of plain connections, for each watching controller (order.md clause 14).
    pub fn tell_plain(&mut self, reports: &[PlainReport], env: &Env<'_>) -> Vec<Vec<u8>> {
        let bodies: Vec<_> = reports.iter().map(|report| OrderBody::PlainReport(report.clone())).collect();
        self.tell_watching(&bodies, env)
    }

    fn tell_watching(&mut self, bodies: &[OrderBody], env: &Env<'_>) -> Vec<Vec<u8>> {
        let watching = |(id, known): (&ControllerId, &Controller)| known.watched(env.now).then_some(*id);
        let watching: Vec<_> = self.controllers.iter().filter_map(watching).collect();
        let mut out = Vec::new();
        for controller in watching {
            out.extend(bodies.iter().filter_map(|body| self.sign(controller, 0, body.clone(), env)));
        }
        out
    }

    pub(super) fn report(&mut self, controller: ControllerId, env: &Env<'_>) -> Vec<Vec<u8>> {
        if let Some(known) = self.controllers.get_mut(&controller) {
            known.next_report = env.now + REPORT_INTERVAL;
        }
        let sessions: Vec<_> = self.running.of(controller).chain(self.preparations.of(controller)).collect();
        self.reports = self.reports.wrapping_add(1);
        // An empty report is one empty chunk. The session limits keep the number of chunks far below 65,536.
        let parts: Vec<Vec<SessionUuid>> = if sessions.is_empty() {
            vec![Vec::new()]
        } else {
            sessions.chunks(MAX_REPORTED).map(<[_]>::to_vec).collect()
        };
        let chunks = u16::try_from(parts.len()).unwrap_or(u16::MAX);
        let report = self.reports;
        let bodies = parts.into_iter().zip(0..chunks).map(|(sessions, chunk)| {
            OrderBody::SessionReport(SessionReport { report, chunk, chunks, sessions })
        });
        let bodies: Vec<_> = bodies.collect();
        bodies.into_iter().filter_map(|body| self.sign(controller, 0, body, env)).collect()
    }

    /// Subscribes a controller to reports. The first Watch, and the first after a pause, is answered immediately, because the controller
    /// may have just started.
    pub(super) fn watch(&mut self, controller: ControllerId, env: &Env<'_>) -> Vec<Vec<u8>> {
        let until = Some(env.now + WATCHED_FOR);
        let known = self.controllers.get_mut(&controller);
        let before = known.and_then(|known| std::mem::replace(&mut known.watches_until, until));
        if before.is_some_and(|before| env.now < before) {
            return Vec::new();
        }
        self.report_flows(controller, env)
    }

    pub(super) fn report_flows(&mut self, controller: ControllerId, env: &Env<'_>) -> Vec<Vec<u8>> {
        self.reports = self.reports.wrapping_add(1);
        let flows = self.running.unordered();
        let parts: Vec<&[ReportedFlow]> =
            if flows.is_empty() { vec![&[]] } else { flows.chunks(MAX_FLOWS).collect() };
        let chunks = u16::try_from(parts.len()).unwrap_or(u16::MAX);
        let report = self.reports;
        let bodies = parts.into_iter().zip(0..chunks).map(|(flows, chunk)| {
            OrderBody::FlowReport(FlowReport { report, chunk, chunks, flows: flows.to_vec() })
        });
        bodies.filter_map(|body| self.sign(controller, 0, body, env)).collect()
    }
}
